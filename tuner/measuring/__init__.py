"""What happens inside a worker: arrays and their check against float64, timing, one config on the bench."""
