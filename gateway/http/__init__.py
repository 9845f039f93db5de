"""HTTP as S3 uses it: targets, headers, ranges, conditions, bodies and responses."""
