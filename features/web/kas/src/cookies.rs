//! The cookies of the page.

use http::{HeaderMap, header::COOKIE};

/// Returns the value of the cookie with this name, or `None` if there is none or there are two: another one cannot be ours. HTTP/2 may
/// split `Cookie` into several fields. Other cookies of the host may have any bytes.
pub(super) fn value<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a [u8]> {
    let fields = headers.get_all(COOKIE).iter();
    let pairs = fields.flat_map(|field| field.as_bytes().split(|&byte| byte == b';'));
    let mut values =
        pairs.filter_map(|pair| pair.trim_ascii().strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    let first = values.next()?;
    values.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the headers of a request with cookies, each in a field of its own.
    fn headers(cookies: &[&str]) -> HeaderMap {
        cookies.iter().map(|cookie| (COOKIE, cookie.parse().unwrap())).collect()
    }

    #[test]
    fn only_one_cookie_of_the_name_counts() {
        for (cookies, expected) in [
            (&["__Host-kas=a"][..], Some(&b"a"[..])),
            (&["x=__Host-kas=y", "other=\u{e9}; __Host-kas=a"], Some(b"a")),
            (&["__Host-kas="], Some(b"")),
            (&[""], None),
            (&["__Host-kas"], None),
            (&["kas=a"], None),
            (&["__host-kas=a"], None),
            (&["__Host-kas=stolen; __Host-kas=a"], None),
            (&["__Host-kas=stolen", "__Host-kas=a"], None),
        ] {
            assert_eq!(value(&headers(cookies), "__Host-kas"), expected, "{cookies:?}");
        }
    }
}
