"""How large what clients send may be. Each limit was set where the grammar library, or what comes before it, took more
than about a second, more than some 100 MB, or the process with it, for something larger of the kind.
"""

# JSON schemas
MAX_SCHEMA_LENGTH = 512 * 1024  # characters as JSON
MAX_LEVELS = 400  # of lists and objects in each other
MAX_SCHEMAS = 10_000  # schemas in one description, definitions counted as often as they are used differently
MAX_NESTED = 25  # schemas in schemas that are handed over as such; deeper ones become definitions
MAX_VALUE_LENGTH = 16 * 1024  # of one const, or one value of an enum, as JSON
MAX_PATTERN_PROPERTIES = 20  # of one object: each is compared with each
MAX_OPTIONAL = 1_000  # optional properties of one object
MAX_ITEMS = 5_000  # minItems, maxItems, minProperties, maxProperties
MAX_STRING = 50_000  # minLength, maxLength
MAX_MULTIPLE = 10_000  # multipleOf, in units of its last digit
MAX_ONE_OF = 50  # schemas that are compared each with each

# Regular expressions
MAX_PATTERN_LENGTH = 20_000  # characters
MAX_GROUPS = 50  # groups in groups
MAX_ATOMS = 20_000  # characters and classes, counted as often as they may be repeated

# Choices, grammars, tools
MAX_CHOICES_LENGTH = 256 * 1024  # characters
MAX_GRAMMAR_LENGTH = 128 * 1024  # characters
MAX_LARK_RULES = 2_000
MAX_GBNF_RULES = 500  # its conversion takes time with the square of their number
MAX_BRACKETS = 50  # brackets in brackets
MAX_FUNCTIONS = 512

# What is kept
MAX_KEPT = 128  # compiled grammars
MAX_KEPT_LENGTH = 8 * 2**20  # characters of their sources
