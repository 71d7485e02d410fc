"""Model families, one module each: how a family's files are read and what its decoder block is made of.

`registry` knows them all. A new family is one module and one line there.
"""
