//! The connections that have not authenticated: anybody can open them, so their number is limited.

use std::{
    collections::{HashMap, VecDeque},
    net::{IpAddr, Ipv6Addr},
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The most connections that have not authenticated.
const MAX_STRANGERS: usize = 64;

/// The connections that have not authenticated, in the order of their arrival.
///
/// A further connection replaces one of the host that has the most, so that a single host can replace only its own connections as
/// long as the others have fewer than it.
#[derive(Default)]
pub(super) struct Strangers(Mutex<VecDeque<Stranger>>);

/// A connection that has not authenticated.
#[derive(Clone, Debug)]
pub(super) struct Stranger {
    host: IpAddr,
    evicted: CancellationToken,
}

impl Strangers {
    /// Adds a connection of the address. If there are too many, the oldest one of the host with the most is evicted.
    pub(super) fn insert(&self, address: IpAddr) -> Stranger {
        let stranger = Stranger { host: host(address), evicted: CancellationToken::new() };
        let mut strangers = self.0.lock();
        strangers.push_back(stranger.clone());
        if strangers.len() > MAX_STRANGERS
            && let Some(evicted) = oldest_of_busiest(&strangers)
            && let Some(evicted) = strangers.remove(evicted)
        {
            evicted.evicted.cancel();
        }
        stranger
    }

    /// Removes a connection that has authenticated, or ended.
    pub(super) fn remove(&self, stranger: &Stranger) {
        self.0.lock().retain(|other| other.evicted != stranger.evicted);
    }
}

impl Stranger {
    /// Completes when another connection has taken the place of this one. Cancel safe.
    pub(super) async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

/// Returns the index of the oldest connection of the host that has the most. Of several such hosts, it is the one that came first.
fn oldest_of_busiest(strangers: &VecDeque<Stranger>) -> Option<usize> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for stranger in strangers {
        *counts.entry(stranger.host).or_default() += 1;
    }
    let most = counts.values().copied().max()?;
    strangers.iter().position(|stranger| counts[&stranger.host] == most)
}

/// Returns the address without what one host can choose by itself: a host with IPv6 has a network of 64 bits (RFC 4291, section 2.5.1).
fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_evicted(stranger: &Stranger) -> bool {
        stranger.evicted.is_cancelled()
    }

    #[test]
    fn flood_of_one_host_evicts_its_own_connections() {
        let strangers = Strangers::default();
        let kas = strangers.insert([10, 0, 0, 1].into());
        let flood: Vec<Stranger> = (0..1000).map(|_| strangers.insert([10, 0, 0, 2].into())).collect();
        assert!(!is_evicted(&kas));
        let late = strangers.insert([10, 0, 0, 3].into());
        assert!(!is_evicted(&late));
        let open = flood.iter().rev().take_while(|stranger| !is_evicted(stranger)).count();
        assert_eq!(open, MAX_STRANGERS - 2, "the newest ones stay");
        assert_eq!(flood.iter().filter(|stranger| !is_evicted(stranger)).count(), open);
    }

    #[test]
    fn network_of_ipv6_is_one_host() {
        let strangers = Strangers::default();
        let kas = strangers.insert("2001:db8:1::1".parse().unwrap());
        for id in 0..1000_u16 {
            strangers.insert(Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, id).into());
        }
        assert!(!is_evicted(&kas));
        assert_eq!(host("::ffff:10.0.0.1".parse().unwrap()), IpAddr::from([10, 0, 0, 1]));
    }

    #[test]
    fn hosts_with_one_connection_each_replace_the_oldest() {
        let strangers = Strangers::default();
        let all: Vec<Stranger> = (0..=64).map(|host| strangers.insert([10, 0, 1, host].into())).collect();
        assert!(is_evicted(&all[0]));
        assert!(!all[1..].iter().any(is_evicted));
    }

    #[test]
    fn removed_connections_do_not_count() {
        let strangers = Strangers::default();
        for _ in 0..1000 {
            let stranger = strangers.insert([10, 0, 0, 2].into());
            strangers.remove(&stranger);
            assert!(!is_evicted(&stranger));
        }
    }
}
