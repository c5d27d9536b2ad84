"""The operations, one module each; `robocache` has their functions.

`_call` passes a call to the library. It imports `_torch`, which makes torch's operators, only if the caller has imported torch.
"""
