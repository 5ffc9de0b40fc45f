"""The documentation: the pages in docs/, which ship with the package, and the reference pages, made from the code."""
