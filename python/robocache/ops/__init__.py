"""The operations, one module each; `_call` is how arguments reach the library, `_torch` what torch's dispatcher needs.

`robocache` itself has the functions. Nothing of torch is imported here: `_torch` is, where a call comes to need it.
"""
