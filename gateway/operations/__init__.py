"""One module per S3 concept; each operation is an async function from a Call to a Reply."""
