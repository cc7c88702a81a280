"""HTTP to untrusted servers: URLs, addresses, bodies, delays.

addresses    Public and private IP addresses
body         Response bodies, decoded under a limit
retry_after  The header `Retry-After`
ssrf         A transport that connects to public addresses only
url          Validation of untrusted URLs
"""
