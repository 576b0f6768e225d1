"""Loops over data, a room per verb: the only home of Lightning and Ray. Import rooms singly."""
