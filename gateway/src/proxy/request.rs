//! The request that is sent to the agent.

use std::sync::Arc;

use access::RequestError;
use http::{Request, Version};
use hyper::upgrade::OnUpgrade;
use promql::{Labels, QueryError};
use proto::Reason;
use tunnel::Body;

use super::context::{Access, RequestContext};
use crate::{
    headers::{self, ProxyHeaders},
    metrics::Limit,
};

/// Builds the request to the agent from the request of the caller. Returns it together with the caller's connection, if the
/// caller asks for an upgrade.
pub(super) async fn to_agent(
    context: &Arc<RequestContext>,
    access: &Access,
    mut request: Request<()>,
) -> Result<(Request<Body>, Option<OnUpgrade>), RequestError> {
    let server = &context.server;
    if access.upgrade && context.version != Version::HTTP_11 {
        return Err(RequestError::bad_request("an upgrade needs HTTP/1.1"));
    }
    let service = &access.destination.service;
    let proxy_headers = ProxyHeaders {
        service,
        access_as: &access.grant.caller.access_as,
        request_id: &context.id,
        version: context.version,
        forwarded: &context.forwarded,
    };
    headers::to_agent(request.headers_mut(), proxy_headers)?;
    context.audit(|record| record.set_identity(request.headers()));
    context.trace.lock().inject(request.headers_mut());
    *request.uri_mut() = access.uri.clone();
    let upgrade = access.upgrade.then(|| hyper::upgrade::on(&mut request));

    let body = context.body.take(server, server.metrics.service(service), context.audited_bytes());
    let request = request.map(|()| body);
    let request = match access.grant.caller.labels(service) {
        // Boxed: most requests are not restricted, and should not reserve memory for it.
        Some(labels) => Box::pin(restrict(context, request, labels)).await?,
        None => request,
    };
    Ok((request, upgrade))
}

/// Restricts the queries of a caller that may see only certain series.
async fn restrict(
    context: &RequestContext,
    request: Request<Body>,
    labels: &Labels,
) -> Result<Request<Body>, RequestError> {
    let restricted = promql::enforce(labels, request, context.server.limits.max_form_bytes).await;
    if let Err(QueryError { reason: Reason::BodyTooLarge, .. }) = &restricted {
        context.server.metrics.count_limit(Limit::Form);
    }
    Ok(restricted?.map(Body::from))
}
