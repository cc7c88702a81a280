"""HTTP that is safe to point at strangers: URLs, addresses, bodies, delays.

addresses    only public ones
body         bodies of HTTP responses, decoded under a limit
retry_after  for how long a server asks to be left alone
ssrf         only public ones
url          a URL from outside, read whole before it is used
"""
