//! The layers in front of [`super::handle`], in the order in which [`super::service`] adds them.
//!
//! A layer is a function from a service to a service. The services have no state, so that a clone costs nothing: the state is
//! in the [`RequestContext`]. They are always ready, so that a layer calls the inner service without `poll_ready`.

use std::{convert::Infallible, panic::AssertUnwindSafe, sync::Arc};

use access::RequestError;
use futures_util::FutureExt as _;
use http::Response;
use proto::Reason;
use tower::{Service, service_fn};

use super::{
    context::{ProxyRequest, RequestContext},
    response_body::GuardedBody,
};

/// Refuses requests from web pages of other origins, answers preflights, and lets allowed origins read the response.
///
/// tower-http's layer serves requests of other origins and relies on the browser to refuse the response: by then a request
/// with side effects was made.
pub(super) fn cors<S>(
    inner: S,
) -> impl Service<ProxyRequest, Response = Response<GuardedBody>, Error = Infallible, Future: Send> + Clone + Send
where
    S: Service<ProxyRequest, Response = Response<GuardedBody>, Error = Infallible, Future: Send>
        + Clone
        + Send,
{
    service_fn(move |request: ProxyRequest| {
        let mut inner = inner.clone();
        async move {
            let cors = match request.context.server.config.cors.check(&request.head) {
                Ok(cors) => cors,
                Err(error) => return Ok(Box::pin(refuse(&request.context, &error)).await),
            };
            if let Some(response) = cors.preflight(&request.head) {
                return Ok(response.map(GuardedBody::untracked));
            }

            let mut response = inner.call(request).await?;
            cors.apply(response.headers_mut());
            Ok(response)
        }
    })
}

/// Starts the span of the request. The span ends with the context.
pub(super) fn trace<S>(
    inner: S,
) -> impl Service<ProxyRequest, Response = S::Response, Error = S::Error, Future: Send> + Clone + Send
where
    S: Service<ProxyRequest, Future: Send> + Clone + Send,
{
    service_fn(move |request: ProxyRequest| {
        let context = &request.context;
        context.log.start_trace(&context.server.observers, &request.head);
        inner.clone().call(request)
    })
}

/// Renders errors in the dialect of the caller.
pub(super) fn render_errors<S>(
    inner: S,
) -> impl Service<ProxyRequest, Response = Response<GuardedBody>, Error = Infallible, Future: Send> + Clone + Send
where
    S: Service<ProxyRequest, Response = Response<GuardedBody>, Error = RequestError, Future: Send>
        + Clone
        + Send,
{
    service_fn(move |request: ProxyRequest| {
        let mut inner = inner.clone();
        async move {
            let context = Arc::clone(&request.context);
            match inner.call(request).await {
                Ok(response) => Ok(response),
                // Boxed: most requests do not fail, and should not reserve memory for it.
                Err(error) => Ok(Box::pin(refuse(&context, &error)).await),
            }
        }
    })
}

/// Turns a panic into an error of this request. The other requests of the connection continue.
pub(super) fn catch_panics<S>(
    inner: S,
) -> impl Service<ProxyRequest, Response = S::Response, Error = RequestError, Future: Send> + Clone + Send
where
    S: Service<ProxyRequest, Response: Send, Error = RequestError, Future: Send> + Clone + Send,
{
    service_fn(move |request: ProxyRequest| {
        let mut inner = inner.clone();
        // The shared state is behind locks that do not poison.
        let caught = AssertUnwindSafe(async move { inner.call(request).await }).catch_unwind();
        caught.map(|result| {
            result.unwrap_or_else(|_| {
                Err(RequestError::new(Reason::Internal, "a defect of kas; the log of kas has the panic"))
            })
        })
    })
}

/// Builds the response to a request that kas or its agent refused or failed, and logs it.
async fn refuse(context: &RequestContext, error: &RequestError) -> Response<GuardedBody> {
    let log = &context.log;
    log.refused(&context.server.observers, error);
    let mut response = error.render(&context.error_format, &log.id, log.trace_id());
    context.body.finish(context.version, response.headers_mut()).await;
    response.map(GuardedBody::untracked)
}
