//! Where a request came from: who says so, and who is believed.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;

/// What proxies say about the way of a request. All but the first is dropped: nobody behind kas needs it.
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const PREFIX: &str = "x-forwarded-";
static OTHERS: [HeaderName; 2] = [HeaderName::from_static("forwarded"), HeaderName::from_static("x-real-ip")];

/// The addresses that a request came through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The first that is believed: the caller's.
    pub client: IpAddr,
    /// All that are, the caller's first.
    hops: Vec<IpAddr>,
}

impl Way {
    /// What is known of a request that came over a connection from `peer`.
    ///
    /// `X-Forwarded-For` is read from its end: each entry was written by the proxy behind it, and is believed while
    /// that proxy is `trusted`. What comes before is what a stranger wrote.
    pub fn of(headers: &HeaderMap, peer: IpAddr, trusted: &[IpNet]) -> Self {
        let believed = |address: &IpAddr| trusted.iter().any(|net| net.contains(address));
        let mut client = peer.to_canonical();
        let mut hops = vec![client];
        for entry in entries(headers) {
            let Some(address) = entry.filter(|_| believed(&client)) else { break };
            client = address;
            hops.push(address);
        }
        hops.reverse();
        Self { client, hops }
    }

    /// Replaces what the request says about its way by what is believed. The API server writes it into its audit log
    /// (`sourceIPs`).
    pub fn write(&self, headers: &mut HeaderMap) {
        let said: Vec<HeaderName> = headers.keys().filter(|name| is_forwarded(name)).cloned().collect();
        for name in said {
            headers.remove(name);
        }
        let hops = self.hops.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ");
        headers.insert(X_FORWARDED_FOR, HeaderValue::from_str(&hops).expect("addresses are ASCII"));
    }
}

fn is_forwarded(name: &HeaderName) -> bool {
    name.as_str().starts_with(PREFIX) || OTHERS.contains(name)
}

/// The last one first; `None` for what is no address.
fn entries(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines: Vec<&HeaderValue> = headers.get_all(X_FORWARDED_FOR).iter().collect();
    lines.into_iter().rev().flat_map(|line| {
        let line = line.to_str().unwrap_or_default();
        line.rsplit(',').map(|entry| address(entry.trim()))
    })
}

/// Some proxies add the port.
fn address(entry: &str) -> Option<IpAddr> {
    let address = entry.parse().ok().or_else(|| entry.parse::<SocketAddr>().ok().map(|socket| socket.ip()));
    address.map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(peer: &str, lines: &[&str]) -> (String, String) {
        let trusted = ["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(X_FORWARDED_FOR, line.parse().unwrap());
        }
        headers.insert("forwarded", "for=1.1.1.1".parse().unwrap());
        headers.insert("x-forwarded-host", "evil.example".parse().unwrap());
        headers.insert("x-real-ip", "1.1.1.1".parse().unwrap());
        headers.insert("accept", "*/*".parse().unwrap());
        let way = Way::of(&headers, peer.parse().unwrap(), &trusted);
        way.write(&mut headers);
        assert_eq!(headers.len(), 2, "{headers:?}");
        (way.client.to_string(), headers["x-forwarded-for"].to_str().unwrap().to_owned())
    }

    #[test]
    fn a_stranger_is_not_believed() {
        for lines in [&[][..], &["1.1.1.1"], &["10.0.0.1, 10.0.0.2"], &["\"><script>"]] {
            assert_eq!(way("192.0.2.1", lines), ("192.0.2.1".into(), "192.0.2.1".into()), "{lines:?}");
        }
    }

    #[test]
    fn each_trusted_proxy_names_who_came_to_it() {
        for (lines, client, expected) in [
            (&[][..], "10.0.0.1", "10.0.0.1"),
            (&["192.0.2.1"], "192.0.2.1", "192.0.2.1, 10.0.0.1"),
            (&["192.0.2.1:5000"], "192.0.2.1", "192.0.2.1, 10.0.0.1"),
            (&["[2001:db8::1]:5000"], "2001:db8::1", "2001:db8::1, 10.0.0.1"),
            (&["192.0.2.1, 10.0.0.9"], "192.0.2.1", "192.0.2.1, 10.0.0.9, 10.0.0.1"),
            (&["192.0.2.1", "10.0.0.9"], "192.0.2.1", "192.0.2.1, 10.0.0.9, 10.0.0.1"),
            (&["1.1.1.1, 192.0.2.1, 10.0.0.9"], "192.0.2.1", "192.0.2.1, 10.0.0.9, 10.0.0.1"),
            (&["192.0.2.1, unknown, 10.0.0.9"], "10.0.0.9", "10.0.0.9, 10.0.0.1"),
            (&["::ffff:192.0.2.1"], "192.0.2.1", "192.0.2.1, 10.0.0.1"),
        ] {
            assert_eq!(way("10.0.0.1", lines), (client.into(), expected.into()), "{lines:?}");
        }
        assert_eq!(way("::ffff:10.0.0.1", &["192.0.2.1"]).0, "192.0.2.1");
    }
}
