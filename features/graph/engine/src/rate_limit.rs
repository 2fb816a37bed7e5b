//! The rate of lists, so that loading a cluster does not slow its API server.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode, header::RETRY_AFTER};
use kube::client::Body;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until};
use tower::Service;

/// The time between two requests.
const INTERVAL: Duration = Duration::from_millis(50);
/// The requests that may come without this time between them after a pause: those of the first pages, at most four at the same time.
const BURST: u32 = 60;
/// The attempts of a request that the API server refuses with 429.
const ATTEMPTS: u32 = 5;
/// The longest wait before another attempt.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// A client that sends 20 requests per second, and waits as long as a 429 says. Watches pass at once.
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    /// The time at which the next request is due without a burst.
    due: Arc<Mutex<Instant>>,
}

impl<S> RateLimit<S> {
    /// Wraps a client. Clones share the rate.
    pub fn new(inner: S) -> Self {
        Self { inner, due: Arc::new(Mutex::new(Instant::now())) }
    }
}

impl<S, B> Service<Request<Body>> for RateLimit<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Send,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<B>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let due = Arc::clone(&self.due);
        let is_watch =
            request.uri().query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
        Box::pin(async move {
            if is_watch {
                return inner.call(request).await;
            }
            // Requests of the loader have no body, so that they can be sent again.
            let (parts, _) = request.into_parts();
            let mut attempt = 1;
            loop {
                let wait = reserve(&mut due.lock(), Instant::now());
                sleep_until(wait).await;
                let response = inner.call(Request::from_parts(parts.clone(), Body::empty())).await?;
                if response.status() != StatusCode::TOO_MANY_REQUESTS || attempt == ATTEMPTS {
                    return Ok(response);
                }
                attempt += 1;
                let seconds =
                    response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
                sleep(Duration::from_secs(seconds.unwrap_or(1)).min(MAX_WAIT)).await;
            }
        })
    }
}

/// Takes a place in the queue (GCRA). Returns the time at which the request may be sent.
fn reserve(due: &mut Instant, now: Instant) -> Instant {
    let slot = (*due).max(now);
    *due = slot + INTERVAL;
    slot.checked_sub(INTERVAL * (BURST - 1)).unwrap_or(now).max(now)
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicU32, Ordering::SeqCst},
    };

    use tower::{ServiceExt as _, service_fn};

    use super::*;

    #[test]
    fn burst_then_steady_rate() {
        let begin = Instant::now();
        let mut due = begin;
        let times: Vec<Duration> = (0..63).map(|_| reserve(&mut due, begin) - begin).collect();
        assert!(times[..60].iter().all(Duration::is_zero), "{times:?}");
        assert_eq!(times[60..], [INTERVAL, 2 * INTERVAL, 3 * INTERVAL]);
    }

    #[tokio::test(start_paused = true)]
    async fn overloaded_server_is_obeyed_and_watches_pass() {
        let requests = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&requests);
        let server = service_fn(move |_: Request<Body>| {
            let number = counted.fetch_add(1, SeqCst);
            let (status, wait) = if number < 2 { (429, "7") } else { (200, "0") };
            let response = Response::builder().status(status).header(RETRY_AFTER, wait).body(()).unwrap();
            async move { Ok::<_, Infallible>(response) }
        });
        let limited = RateLimit::new(server);
        let begin = Instant::now();
        let request = |uri: &str| Request::get(uri).body(Body::empty()).unwrap();
        let response = limited.clone().oneshot(request("/api/v1/pods?limit=1")).await.unwrap();
        assert_eq!((response.status(), requests.load(SeqCst)), (StatusCode::OK, 3));
        assert_eq!(begin.elapsed().as_secs(), 14);
        requests.store(0, SeqCst);
        let response = limited.oneshot(request("/api/v1/pods?limit=1&watch=true")).await.unwrap();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS, "the loader waits itself");
    }
}
