//! Strangers: connections whose clients have not shown a valid credential.
//!
//! Silent connections cost a stranger nothing, and could fill a listener. While it is full, each new connection replaces one of a
//! stranger: the oldest one of the address that has the most. So a stranger at one address replaces its own connections only, and
//! strangers at many addresses have to fill the whole listener in the time between the handshake of a caller and its first request.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use ipnet::IpNet;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use access::site;

/// The strangers of one listener.
#[derive(Debug, Default)]
pub(crate) struct Strangers(Mutex<Table>);

/// A connection that counts as a stranger until its server admits the client, or until it is dropped.
///
/// The default belongs to no listener.
#[derive(Debug, Default)]
pub struct Stranger {
    strangers: Arc<Strangers>,
    place: Option<Place>,
    admitted: AtomicBool,
    replaced: CancellationToken,
}

/// The place of a stranger in the table.
#[derive(Clone, Copy, Debug)]
struct Place {
    site: IpNet,
    number: u64,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// The connections of each site in the order of their age.
    sites: HashMap<IpNet, BTreeMap<u64, CancellationToken>>,
    /// All sites. The last one has the most connections, and of those with equally many the oldest connection.
    ranks: BTreeMap<Rank, IpNet>,
}

/// The number of connections of a site, and its oldest one.
type Rank = (usize, Reverse<u64>);

impl Strangers {
    /// Adds a connection.
    pub(crate) fn insert(self: &Arc<Self>, address: IpAddr) -> Stranger {
        let (site, replaced) = (site(address), CancellationToken::new());
        let mut table = self.0.lock();
        table.next += 1;
        let number = table.next;
        table.edit(site, |connections| connections.insert(number, replaced.clone()));
        let place = Some(Place { site, number });
        Stranger { strangers: Arc::clone(self), place, admitted: AtomicBool::new(false), replaced }
    }

    /// Ends the oldest connection of the site that has the most. Returns whether there was one.
    pub(crate) fn replace_one(&self) -> bool {
        let mut table = self.0.lock();
        let Some((&(_, Reverse(number)), &site)) = table.ranks.last_key_value() else { return false };
        let replaced = table.edit(site, |connections| connections.remove(&number));
        replaced.inspect(CancellationToken::cancel).is_some()
    }

    fn remove(&self, place: Place) {
        self.0.lock().edit(place.site, |connections| connections.remove(&place.number));
    }
}

impl Stranger {
    /// Admits the client, mostly because of a valid credential: its connection is not replaced any more.
    pub fn admit(&self) {
        if let Some(place) = self.place
            && !self.admitted.swap(true, Relaxed)
        {
            self.strangers.remove(place);
        }
    }

    /// Changes the address to that of the PROXY header.
    pub(crate) fn set_address(&mut self, address: IpAddr) {
        if let Some(place) = &mut self.place
            && place.site != site(address)
        {
            let mut table = self.strangers.0.lock();
            let Some(token) = table.edit(place.site, |connections| connections.remove(&place.number)) else {
                return;
            };
            place.site = site(address);
            table.edit(place.site, |connections| connections.insert(place.number, token));
        }
    }

    /// Returns the token that is cancelled when another connection replaces this one.
    pub(crate) fn replaced(&self) -> CancellationToken {
        self.replaced.clone()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.admit();
    }
}

impl Table {
    /// Changes the connections of a site, and its rank.
    fn edit<R>(&mut self, site: IpNet, change: impl FnOnce(&mut BTreeMap<u64, CancellationToken>) -> R) -> R {
        let connections = self.sites.entry(site).or_default();
        if let Some(rank) = rank(connections) {
            self.ranks.remove(&rank);
        }
        let result = change(connections);
        match rank(connections) {
            Some(rank) => drop(self.ranks.insert(rank, site)),
            None => drop(self.sites.remove(&site)),
        }
        result
    }
}

fn rank(connections: &BTreeMap<u64, CancellationToken>) -> Option<Rank> {
    connections.keys().next().map(|oldest| (connections.len(), Reverse(*oldest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insert(strangers: &Arc<Strangers>, address: &str) -> Stranger {
        strangers.insert(address.parse().unwrap())
    }

    /// Returns the positions of the connections that were replaced.
    fn replaced(connections: &[Stranger]) -> Vec<usize> {
        let all = connections.iter().enumerate();
        all.filter(|(_, connection)| connection.replaced.is_cancelled())
            .map(|(position, _)| position)
            .collect()
    }

    #[test]
    fn oldest_connection_of_the_busiest_site_is_replaced() {
        let strangers = Arc::default();
        let connections = ["192.0.2.1", "2001:db8::1", "2001:db8::2", "192.0.2.1", "2001:db8::3"]
            .map(|a| insert(&strangers, a));
        for expected in [&[1][..], &[0, 1], &[0, 1, 2], &[0, 1, 2, 3], &[0, 1, 2, 3, 4]] {
            assert!(strangers.replace_one());
            assert_eq!(replaced(&connections), expected);
        }
        assert!(!strangers.replace_one());
        drop(connections);
        let table = strangers.0.lock();
        assert!(table.sites.is_empty() && table.ranks.is_empty());
    }

    #[test]
    fn admitted_and_ended_connections_are_not_replaced() {
        let strangers = Arc::default();
        let connections = ["192.0.2.1", "192.0.2.1", "192.0.2.1"].map(|a| insert(&strangers, a));
        connections[0].admit();
        connections[0].admit();
        let ended = insert(&strangers, "192.0.2.2");
        drop(ended);
        assert!(strangers.replace_one() && strangers.replace_one() && !strangers.replace_one());
        assert_eq!(replaced(&connections), [1, 2]);
        Stranger::default().admit();
    }

    #[test]
    fn client_of_a_proxy_has_its_own_address() {
        let strangers = Arc::default();
        let mut connections =
            ["192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.9"].map(|a| insert(&strangers, a));
        connections[0].set_address("192.0.2.9".parse().unwrap());
        connections[1].set_address("192.0.2.9".parse().unwrap());
        connections[2].set_address("192.0.2.1".parse().unwrap());
        assert!(strangers.replace_one() && strangers.replace_one());
        assert_eq!(replaced(&connections), [0, 1]);
        connections[0].set_address("192.0.2.1".parse().unwrap());
        assert!(strangers.replace_one());
        assert_eq!(replaced(&connections), [0, 1, 2]);
    }
}
