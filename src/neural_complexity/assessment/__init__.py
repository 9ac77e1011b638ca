"""NC's opinion of a user's own model, wherever that lives."""
