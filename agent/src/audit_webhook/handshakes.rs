//! The handshakes of clients that have not shown a certificate yet. They do not occupy the places of the API server.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;

/// The most handshakes at the same time.
const MAX_HANDSHAKES: usize = 256;
/// The most handshakes of one address.
const MAX_OF_ADDRESS: usize = 8;

/// Counts handshakes. Clones share their state.
#[derive(Clone, Debug, Default)]
pub(super) struct Handshakes(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A handshake. Its place is free again when it is dropped.
#[derive(Debug)]
pub(super) struct HandshakeGuard {
    handshakes: Handshakes,
    address: IpAddr,
}

impl Handshakes {
    /// Begins a handshake with an address, or returns `None` if there are too many.
    pub(super) fn begin(&self, address: IpAddr) -> Option<HandshakeGuard> {
        let mut open = self.0.lock();
        let all: usize = open.values().sum();
        let of_address = open.get(&address).copied().unwrap_or_default();
        if all >= MAX_HANDSHAKES || of_address >= MAX_OF_ADDRESS {
            return None;
        }
        open.insert(address, of_address + 1);
        Some(HandshakeGuard { handshakes: self.clone(), address })
    }
}

impl Drop for HandshakeGuard {
    fn drop(&mut self) {
        let mut open = self.handshakes.0.lock();
        match open.get_mut(&self.address) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                open.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_has_few_handshakes_and_all_have_a_limit() {
        let handshakes = Handshakes::default();
        let address = |number: usize| IpAddr::from([10, 0, (number >> 8) as u8, number as u8]);
        let mut of_one: Vec<_> = (0..MAX_OF_ADDRESS).map(|_| handshakes.begin(address(0)).unwrap()).collect();
        assert!(handshakes.begin(address(0)).is_none());
        of_one.pop();
        of_one.push(handshakes.begin(address(0)).unwrap());
        let _others: Vec<_> = (MAX_OF_ADDRESS..MAX_HANDSHAKES)
            .map(|number| handshakes.begin(address(number)).unwrap())
            .collect();
        assert!(handshakes.begin(address(1)).is_none());
        drop(of_one);
        assert!(handshakes.begin(address(1)).is_some());
        assert_eq!(handshakes.0.lock().len(), MAX_HANDSHAKES - MAX_OF_ADDRESS);
    }
}
