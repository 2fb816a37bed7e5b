//! The limit of lines about strangers, so that they cannot push the lines of known callers out of the files.

use std::{cmp::Reverse, collections::HashMap, net::IpAddr};

use ipnet::IpNet;
use parking_lot::Mutex;

use access::site;

/// The most lines about strangers of one address in a period. For IPv6, an address stands for its /64.
const LINES_PER_ADDRESS: u32 = 10;
/// The most lines about strangers in a period.
const LINES: u32 = 100;
/// The most addresses that are counted in a period. Further ones are counted together.
const ADDRESSES: usize = 1000;
/// The most addresses whose counts have a line of their own.
const COUNTED_ADDRESSES: usize = 10;

/// Counts the refusals of strangers in a period.
#[derive(Debug, Default)]
pub(super) struct StrangerLimit(Mutex<Period>);

#[derive(Debug, Default)]
struct Period {
    /// The admitted lines.
    lines: u32,
    addresses: HashMap<IpNet, AddressCounts>,
    /// The refusals that were left out, of addresses beyond the highest number.
    others: u64,
}

#[derive(Debug, Default)]
struct AddressCounts {
    lines: u32,
    left_out: u64,
}

/// The number of refusals without a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// The address or /64, or `None` for all further ones together.
    pub(super) client: Option<IpNet>,
    /// The number of refusals.
    pub(super) count: u64,
}

impl StrangerLimit {
    /// Returns whether a refusal of a stranger has a line, and counts it.
    pub(super) fn admit(&self, client: IpAddr) -> bool {
        let Period { lines, addresses, others } = &mut *self.0.lock();
        let address = site(client);
        if !addresses.contains_key(&address) && addresses.len() == ADDRESSES {
            *others += 1;
            return false;
        }
        let counts = addresses.entry(address).or_default();
        let admitted = *lines < LINES && counts.lines < LINES_PER_ADDRESS;
        if admitted {
            *lines += 1;
            counts.lines += 1;
        } else {
            counts.left_out += 1;
        }
        admitted
    }

    /// Begins a new period. Returns what was left out in the last one, the addresses with the highest counts first.
    pub(super) fn take(&self) -> Vec<LeftOut> {
        let Period { addresses, mut others, .. } = std::mem::take(&mut *self.0.lock());
        let counts = addresses.into_iter().map(|(client, counts)| (Some(client), counts.left_out));
        let mut left_out: Vec<_> =
            counts.filter(|(_, count)| *count > 0).map(|(client, count)| LeftOut { client, count }).collect();
        left_out.sort_by_key(|left_out| (Reverse(left_out.count), left_out.client));
        let rest = left_out.split_off(left_out.len().min(COUNTED_ADDRESSES));
        others += rest.iter().map(|left_out| left_out.count).sum::<u64>();
        left_out.extend((others > 0).then_some(LeftOut { client: None, count: others }));
        left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(limit: &StrangerLimit, client: &str, refusals: usize) -> usize {
        let client = client.parse().unwrap();
        (0..refusals).filter(|_| limit.admit(client)).count()
    }

    #[test]
    fn address_has_ten_lines_and_then_a_count() {
        let limit = StrangerLimit::default();
        assert_eq!(admitted(&limit, "192.0.2.1", 10), 10);
        assert_eq!(limit.take(), [], "nothing was left out");
        assert_eq!(admitted(&limit, "192.0.2.1", 1000), 10);
        assert_eq!(admitted(&limit, "::ffff:192.0.2.1", 1), 0, "the same address");
        assert_eq!(admitted(&limit, "2001:db8::1", 8), 8);
        assert_eq!(admitted(&limit, "2001:db8::ffff:2", 8), 2, "the same /64");
        assert_eq!(admitted(&limit, "2001:db8:0:1::1", 8), 8);
        let expected = [("192.0.2.1/32", 991), ("2001:db8::/64", 6)];
        let expected =
            expected.map(|(client, count)| LeftOut { client: Some(client.parse().unwrap()), count });
        assert_eq!(limit.take(), expected);
        assert_eq!((admitted(&limit, "192.0.2.1", 20), limit.take().len()), (10, 1), "a new period");
    }

    #[test]
    fn many_addresses_share_a_limit_and_bounded_memory() {
        let limit = StrangerLimit::default();
        let refusals = 20 * ADDRESSES as u32;
        let lines =
            (0..refusals).filter(|n| limit.admit(IpAddr::from((n % (2 * ADDRESSES as u32)).to_be_bytes())));
        assert_eq!(lines.count(), LINES as usize);
        assert_eq!(limit.0.lock().addresses.len(), ADDRESSES);
        let left_out = limit.take();
        assert_eq!(left_out.len(), COUNTED_ADDRESSES + 1);
        assert_eq!(left_out.last().unwrap().client, None);
        let counted: u64 = left_out.iter().map(|left_out| left_out.count).sum();
        assert_eq!(counted, u64::from(refusals - LINES), "each refusal has a line or is counted");
    }
}
