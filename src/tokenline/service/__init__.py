"""The middle: one checked request in, one stream of answer events out. Knows the four layers below, and no protocol."""
