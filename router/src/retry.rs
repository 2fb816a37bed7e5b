//! The retry rule. It does no I/O.

use proto::Delivery;

/// The highest number of times that one request is sent.
const MAX_TRIES: u32 = 3;

/// Decides whether a request that got no response may be sent again.
///
/// One policy belongs to one request of a caller and counts its tries.
#[derive(Clone, Debug)]
pub struct RetryPolicy {
    tries: u32,
    safe: bool,
}

impl RetryPolicy {
    /// Creates the policy of a request that is about to be sent for the first time.
    ///
    /// `safe`: the method is safe (RFC 9110 section 9.2.1), so that sending the request twice does no harm.
    pub fn new(safe: bool) -> Self {
        Self { tries: 1, safe }
    }

    /// Returns whether to send the request again, and counts the try if so. The caller must still have the whole body.
    pub fn should_retry(&mut self, delivery: Delivery) -> bool {
        let harmless = delivery == Delivery::NotProcessed || self.safe;
        let retry = harmless && self.tries < MAX_TRIES;
        self.tries += u32::from(retry);
        retry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_requires_a_harmless_request() {
        for (safe, delivery, expected) in [
            (true, Delivery::NotProcessed, true),
            (true, Delivery::Unknown, true),
            (false, Delivery::NotProcessed, true),
            (false, Delivery::Unknown, false),
        ] {
            assert_eq!(RetryPolicy::new(safe).should_retry(delivery), expected, "safe {safe}, {delivery:?}");
        }
    }

    #[test]
    fn tries_are_bounded() {
        let mut policy = RetryPolicy::new(true);
        assert!(policy.should_retry(Delivery::NotProcessed));
        assert!(policy.should_retry(Delivery::NotProcessed));
        assert!(!policy.should_retry(Delivery::NotProcessed));
    }
}
