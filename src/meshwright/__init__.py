"""meshwright: tensor programs over the meshes of an accelerator, stated, checked, and evaluated bit for bit."""
