"""What a principal may do. Called once per request, after routing."""

from s3verbs.gateway.auth.principal import Principal
from s3verbs.gateway.errors import S3Error


class Authorizer:
    """Every active access key may do everything; anonymous callers may do nothing."""

    def check(self, principal: Principal, action: str, bucket: str, key: str) -> None:
        """`action` is IAM's (`s3:GetObject`); `bucket` and `key` are "" where there is none.

        Raises S3Error AccessDenied.
        """
        if principal.anonymous:
            raise S3Error("AccessDenied")
