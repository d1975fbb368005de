"""The one reader: snapshot, splits, Arrow batches. Everything that reads a store goes through it."""
