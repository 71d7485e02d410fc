"""The keywords of JSON Schema, 2020-12 and older drafts: what their values hold, and what they are about."""

# Keywords whose value is a schema, a list of schemas, or schemas by name.
ONE = (
    *("items", "additionalItems", "contains", "unevaluatedItems"),
    *("additionalProperties", "propertyNames", "unevaluatedProperties", "contentSchema"),
    *("not", "if", "then", "else"),
)
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
NAMED = ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")

TYPES = ("null", "boolean", "number", "integer", "string", "array", "object")
FORMS = ("allOf", "anyOf", "oneOf", "$ref")  # other schemas for the same value
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
ABOUT = {  # which type a keyword is about; it says nothing of values of other types
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format"), "string"),
    **dict.fromkeys((*BOUNDS, "multipleOf"), "number"),
    **dict.fromkeys(("items", "prefixItems", "additionalItems", "minItems", "maxItems"), "array"),
    **dict.fromkeys(("uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"), "array"),
    **dict.fromkeys(("properties", "patternProperties", "additionalProperties", "required"), "object"),
    **dict.fromkeys(("minProperties", "maxProperties", "propertyNames", "unevaluatedProperties"), "object"),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), "object"),
}
