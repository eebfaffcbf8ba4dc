"""*Sparse Unsupervised Capsules Generalize Better*."""
