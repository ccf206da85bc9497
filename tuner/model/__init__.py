"""A model of times for one operation on one device: physics first, trees on top, calibrated by leaving out."""
