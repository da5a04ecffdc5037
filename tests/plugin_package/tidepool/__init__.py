"""Parts for Ridgeline in a package of their own: one for each seam."""
