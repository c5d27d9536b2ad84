"""The operations as torch knows them: gradients, torch.compile, vmap and all else that goes through its dispatcher."""
