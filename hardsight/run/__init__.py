"""Loops over data: the only home of Lightning and Ray. Import its files singly."""
