"""What an author writes: operations, problems, kernels, their spaces, and the devices they are declared for."""
