//! The bytes of requests that have not ended.

use std::{net::IpAddr, sync::Arc};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::table::{Holder, Table, TableSlot};

/// Limits the bytes that the requests of a listener hold at the same time. Cheap to clone.
///
/// A request counts with what has arrived, not with what it announces. Beyond the limit, it replaces the request of a stranger.
#[derive(Clone, Debug)]
pub struct ByteLimit {
    limit: usize,
    state: Arc<Mutex<ByteLimitState>>,
}

#[derive(Debug, Default)]
struct ByteLimitState {
    /// The bytes of all requests.
    total: usize,
    strangers: Table,
}

/// The bytes of one request, which count until this is dropped, or until another request has replaced this one.
#[derive(Debug)]
pub struct BytesGuard {
    limit: ByteLimit,
    holder: BytesHolder,
    replaced: CancellationToken,
}

#[derive(Debug)]
enum BytesHolder {
    /// Its place is that of the first byte.
    Stranger { address: IpAddr, place: Option<TableSlot> },
    /// The bytes of a client with a credential.
    Admitted(usize),
}

/// The error of bytes for which there is no room.
#[derive(Debug, thiserror::Error)]
#[error("there are too many bytes of requests that have not ended")]
pub struct OverLimit;

impl ByteLimit {
    /// Allows so many bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, state: Arc::default() }
    }

    /// Begins a request of an address. That of a client with a credential is never replaced.
    pub fn begin(&self, address: IpAddr, is_admitted: bool) -> BytesGuard {
        let holder = if is_admitted {
            BytesHolder::Admitted(0)
        } else {
            BytesHolder::Stranger { address, place: None }
        };
        BytesGuard { limit: self.clone(), holder, replaced: CancellationToken::new() }
    }

    /// Returns the bytes of all requests.
    pub fn total(&self) -> usize {
        self.state.lock().total
    }
}

impl BytesGuard {
    /// Counts bytes that have arrived. If there is no room for them, the oldest request of the site that holds the most ends.
    ///
    /// # Errors
    ///
    /// This request itself has ended, or only clients with a credential hold bytes. The caller drops what has arrived.
    pub fn grow(&mut self, bytes: usize) -> Result<(), OverLimit> {
        let mut state = self.limit.state.lock();
        match &mut self.holder {
            BytesHolder::Admitted(held) => *held += bytes,
            BytesHolder::Stranger { address, place: place @ None } => {
                let holder = Holder { units: bytes, replaced: self.replaced.clone() };
                *place = Some(state.strangers.insert(*address, holder));
            }
            BytesHolder::Stranger { place: Some(place), .. } => {
                if !state.strangers.grow(*place, bytes) {
                    return Err(OverLimit);
                }
            }
        }
        state.total += bytes;
        while state.total > self.limit.limit {
            state.total -= state.strangers.replace_one().ok_or(OverLimit)?;
        }
        if self.replaced.is_cancelled() { Err(OverLimit) } else { Ok(()) }
    }

    /// Returns the token that is cancelled when another request has replaced this one.
    pub fn replaced(&self) -> CancellationToken {
        self.replaced.clone()
    }
}

impl Drop for BytesGuard {
    fn drop(&mut self) {
        let mut state = self.limit.state.lock();
        let held = match self.holder {
            BytesHolder::Admitted(held) => held,
            BytesHolder::Stranger { place, .. } => {
                place.and_then(|place| state.strangers.remove(place)).map_or(0, |holder| holder.units)
            }
        };
        state.total -= held;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn oldest_request_of_the_site_with_the_most_bytes_is_replaced() {
        let limit = ByteLimit::new(100);
        let mut flood: Vec<_> = (0..4).map(|_| limit.begin(address(1), false)).collect();
        let mut other = limit.begin(address(2), false);
        flood.iter_mut().for_each(|request| request.grow(20).unwrap());
        other.grow(20).unwrap();
        assert_eq!(limit.total(), 100);
        other.grow(30).unwrap();
        let replaced: Vec<_> = flood.iter().map(|request| request.replaced.is_cancelled()).collect();
        assert_eq!(replaced, [true, true, false, false]);
        assert_eq!(limit.total(), 90);
        assert!(flood[0].grow(1).is_err(), "it has ended");
        drop((flood, other));
        assert_eq!(limit.total(), 0);
    }

    #[test]
    fn client_with_a_credential_is_not_replaced_and_replaces_strangers() {
        let limit = ByteLimit::new(100);
        let [mut stranger, mut known] = [false, true].map(|known| limit.begin(address(1), known));
        stranger.grow(90).unwrap();
        known.grow(60).unwrap();
        assert!(stranger.replaced.is_cancelled());
        assert!(limit.begin(address(2), false).grow(50).is_err(), "a stranger finds no other stranger");
        known.grow(40).unwrap();
        assert!(known.grow(1).is_err());
        drop((known, stranger));
        assert_eq!(limit.total(), 0);
    }

    #[test]
    fn request_that_fills_the_limit_alone_ends_itself() {
        let limit = ByteLimit::new(100);
        let mut request = limit.begin(address(1), false);
        assert!(request.grow(101).is_err());
        assert_eq!(limit.total(), 0);
    }
}
