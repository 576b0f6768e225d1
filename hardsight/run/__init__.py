"""Loops over data, a room per verb: the only home of Lightning. Import rooms singly."""
