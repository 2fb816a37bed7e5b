//! Places and bytes that the strangers of one listener hold, by site.

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

use crate::site;

/// The strangers of one listener.
#[derive(Debug, Default)]
pub struct Strangers(Mutex<Table>);

/// A connection that counts as a stranger until its server admits the client, or until it is dropped.
///
/// The default belongs to no listener.
#[derive(Debug, Default)]
pub struct Stranger {
    strangers: Arc<Strangers>,
    place: Mutex<Option<TableSlot>>,
    admitted: AtomicBool,
    replaced: CancellationToken,
}

/// The place of a holder in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableSlot {
    site: IpNet,
    number: u64,
}

/// Shares of holders that others may replace. The units are connections, or bytes.
#[derive(Debug, Default)]
pub(crate) struct Table {
    next: u64,
    sites: HashMap<IpNet, Site>,
    /// All sites. The last one holds the most units, and of those with equally many the oldest holder.
    ranks: BTreeMap<Rank, IpNet>,
}

/// The holders of a site in the order of their age.
#[derive(Debug, Default)]
struct Site {
    units: usize,
    holders: BTreeMap<u64, Holder>,
}

#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) units: usize,
    /// Cancelled when another one replaces this holder.
    pub(crate) replaced: CancellationToken,
}

/// The units of a site, and its oldest holder.
type Rank = (usize, Reverse<u64>);

impl Strangers {
    /// Adds a connection.
    pub fn insert(self: &Arc<Self>, address: IpAddr) -> Stranger {
        let replaced = CancellationToken::new();
        let place = self.0.lock().insert(address, Holder { units: 1, replaced: replaced.clone() });
        Stranger {
            strangers: Arc::clone(self),
            place: Mutex::new(Some(place)),
            admitted: AtomicBool::new(false),
            replaced,
        }
    }

    /// Ends the oldest connection of the site that has the most. Returns whether there was one.
    pub fn replace_one(&self) -> bool {
        self.0.lock().replace_one().is_some()
    }
}

impl Stranger {
    /// Admits the client, mostly because of a valid credential: its connection is not replaced any more.
    pub fn admit(&self) {
        if !self.admitted.swap(true, Relaxed)
            && let Some(place) = self.place.lock().take()
        {
            self.strangers.0.lock().remove(place);
        }
    }

    /// Returns whether the client was admitted.
    pub fn is_admitted(&self) -> bool {
        self.admitted.load(Relaxed)
    }

    /// Makes the connection the newest one of its site, because the client uses it.
    pub fn renew(&self) {
        if !self.is_admitted() {
            self.reinsert(|table, place| TableSlot { number: table.next_number(), ..place });
        }
    }

    /// Changes the address to that of the PROXY header.
    pub fn set_address(&self, address: IpAddr) {
        self.reinsert(|_, place| TableSlot { site: site(address), ..place });
    }

    /// Returns the token that is cancelled when another connection replaces this one.
    pub fn replaced(&self) -> CancellationToken {
        self.replaced.clone()
    }

    fn reinsert(&self, change: impl FnOnce(&mut Table, TableSlot) -> TableSlot) {
        let mut place = self.place.lock();
        if let Some(before) = *place {
            let mut table = self.strangers.0.lock();
            // Another connection has replaced this one otherwise.
            let Some(holder) = table.remove(before) else { return };
            let after = change(&mut table, before);
            table.insert_at(after, holder);
            *place = Some(after);
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.admit();
    }
}

impl Table {
    pub(crate) fn insert(&mut self, address: IpAddr, holder: Holder) -> TableSlot {
        let place = TableSlot { site: site(address), number: self.next_number() };
        self.insert_at(place, holder);
        place
    }

    fn insert_at(&mut self, place: TableSlot, holder: Holder) {
        self.edit(place.site, |site| site.insert(place.number, holder));
    }

    fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Removes a holder, unless another one has replaced it.
    pub(crate) fn remove(&mut self, place: TableSlot) -> Option<Holder> {
        self.edit(place.site, |site| site.remove(place.number))
    }

    /// Adds units to a holder. Returns false if another one has replaced it.
    pub(crate) fn grow(&mut self, place: TableSlot, units: usize) -> bool {
        self.edit(place.site, |site| {
            let Some(holder) = site.holders.get_mut(&place.number) else { return false };
            holder.units += units;
            site.units += units;
            true
        })
    }

    /// Ends the oldest holder of the site that holds the most. Returns its units, or `None` if there is none.
    pub(crate) fn replace_one(&mut self) -> Option<usize> {
        let (&(_, Reverse(number)), &site) = self.ranks.last_key_value()?;
        let holder = self.edit(site, |site| site.remove(number))?;
        holder.replaced.cancel();
        Some(holder.units)
    }

    /// Changes a site, and its rank.
    fn edit<R>(&mut self, site: IpNet, change: impl FnOnce(&mut Site) -> R) -> R {
        let of_site = self.sites.entry(site).or_default();
        if let Some(rank) = of_site.rank() {
            self.ranks.remove(&rank);
        }
        let result = change(of_site);
        match of_site.rank() {
            Some(rank) => drop(self.ranks.insert(rank, site)),
            None => drop(self.sites.remove(&site)),
        }
        result
    }
}

impl Site {
    fn insert(&mut self, number: u64, holder: Holder) {
        self.units += holder.units;
        self.holders.insert(number, holder);
    }

    fn remove(&mut self, number: u64) -> Option<Holder> {
        self.holders.remove(&number).inspect(|holder| self.units -= holder.units)
    }

    fn rank(&self) -> Option<Rank> {
        self.holders.keys().next().map(|oldest| (self.units, Reverse(*oldest)))
    }
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
        let connections = ["192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.9"].map(|a| insert(&strangers, a));
        connections[0].set_address("192.0.2.9".parse().unwrap());
        connections[1].set_address("192.0.2.9".parse().unwrap());
        connections[2].set_address("192.0.2.1".parse().unwrap());
        assert!(strangers.replace_one() && strangers.replace_one());
        assert_eq!(replaced(&connections), [0, 1]);
        connections[0].set_address("192.0.2.1".parse().unwrap());
        assert!(strangers.replace_one());
        assert_eq!(replaced(&connections), [0, 1, 2]);
    }

    #[test]
    fn connection_that_is_used_is_replaced_after_the_idle_ones_of_its_site() {
        let strangers = Arc::default();
        let connections = ["192.0.2.1", "192.0.2.1", "192.0.2.1"].map(|a| insert(&strangers, a));
        connections[0].renew();
        assert!(strangers.replace_one() && strangers.replace_one());
        assert_eq!(replaced(&connections), [1, 2]);
        connections[1].renew();
        assert!(
            strangers.replace_one() && !strangers.replace_one(),
            "a replaced connection does not come back"
        );
    }
}
