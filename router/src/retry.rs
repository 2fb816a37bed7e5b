//! The retry rule. It does no I/O.
//!
//! A request that got no response is sent again only
//!
//! * if the other end certainly did not process it ([`Delivery::NotProcessed`]), or
//! * if its method is safe (RFC 9110 section 9.2.1) and it is no upgrade. `kubectl exec` over WebSocket is a GET, and executes a
//!   command.
//!
//! It is sent at most three times. agentk has a retry of its own: a safe request without a body, that is no upgrade, on a
//! connection to the cluster that had been unused for a second. In the worst case, the cluster thus receives a safe request six
//! times; any other request, and any upgrade, it executes once at most.

use http::{Request, header::UPGRADE};
use proto::Delivery;

/// The highest number of times that one request is sent.
const MAX_TRIES: u32 = 3;

/// Decides whether a request that got no response may be sent again.
///
/// One policy belongs to one request of a caller and counts its tries.
#[derive(Clone, Debug)]
pub struct RetryPolicy {
    tries: u32,
    /// Sending the request twice does no harm.
    repeatable: bool,
}

impl RetryPolicy {
    /// Creates the policy of a request that is about to be sent for the first time.
    pub fn new<B>(request: &Request<B>) -> Self {
        let repeatable = request.method().is_safe() && !request.headers().contains_key(UPGRADE);
        Self { tries: 1, repeatable }
    }

    /// Returns whether to send the request again, and counts the try if so. The caller must still have the whole body.
    pub fn should_retry(&mut self, delivery: Delivery) -> bool {
        let harmless = delivery == Delivery::NotProcessed || self.repeatable;
        let retry = harmless && self.tries < MAX_TRIES;
        self.tries += u32::from(retry);
        retry
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    fn policy(method: Method, upgrade: bool) -> RetryPolicy {
        let mut request = Request::new(());
        *request.method_mut() = method;
        if upgrade {
            request.headers_mut().insert(UPGRADE, "websocket".parse().unwrap());
        }
        RetryPolicy::new(&request)
    }

    #[test]
    fn retry_requires_a_harmless_request() {
        for (method, upgrade, delivery, expected) in [
            (Method::GET, false, Delivery::NotProcessed, true),
            (Method::GET, false, Delivery::Unknown, true),
            (Method::HEAD, false, Delivery::Unknown, true),
            (Method::POST, false, Delivery::NotProcessed, true),
            (Method::POST, false, Delivery::Unknown, false),
            (Method::PUT, false, Delivery::Unknown, false),
            (Method::GET, true, Delivery::NotProcessed, true),
            (Method::GET, true, Delivery::Unknown, false),
        ] {
            let what = format!("{method}, upgrade {upgrade}, {delivery:?}");
            assert_eq!(policy(method, upgrade).should_retry(delivery), expected, "{what}");
        }
    }

    #[test]
    fn tries_are_bounded() {
        let mut policy = policy(Method::GET, false);
        assert!(policy.should_retry(Delivery::NotProcessed));
        assert!(policy.should_retry(Delivery::NotProcessed));
        assert!(!policy.should_retry(Delivery::NotProcessed));
    }
}
