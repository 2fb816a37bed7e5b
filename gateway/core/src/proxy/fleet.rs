//! Answers requests about all agents of a caller. Each request to an agent that this needs is one of the caller: it is authorized, limited
//! and audited as any other.

use std::{net::IpAddr, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, Version,
    header::{
        ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, EXPECT,
        TRANSFER_ENCODING,
    },
};
use http_body_util::{BodyExt as _, Limited};
use kas_listen::addresses::{PeerAddress, is_forwarded};
use proto::{AgentId, Reason, ServiceName, agent_path, header};
use serde::Deserialize;
use tunnel::Body;

use super::{
    ConcurrencyPermit, RequestContext, RequestGuard, request::ProxyRequest, response::GuardedBody,
    serve_request, server::ProxyServer,
};
use crate::{
    fleet_requests::{AgentRequests, FleetRequest, FleetRequests},
    hosts::Route,
};
use access::{Credential, RequestError, kill_switch::RequestAttributes};

/// The most characters of the message of a refused request that are kept.
const MAX_MESSAGE: usize = 500;
/// Sends the requests of one caller.
#[derive(Debug)]
struct CallerSender {
    server: Arc<ProxyServer>,
    guard: RequestGuard,
    client: IpAddr,
    version: Version,
    headers: HeaderMap,
    credential: Credential,
}

/// The error of a response of kas.
#[derive(Deserialize)]
struct ErrorBody {
    message: String,
}

/// Returns the kind of a request about all agents, if it is one.
pub(super) fn kind<'a>(context: &'a RequestContext, head: &Request<()>) -> Option<&'a dyn FleetRequests> {
    let mut kinds = context.server.handling.fleet.iter().map(|kind| &**kind);
    let kind = kinds.find(|kind| kind.path() == head.uri().path())?;
    (context.route == Route::Path).then_some(kind)
}

/// Answers a request of this kind.
pub(super) async fn answer(
    context: &RequestContext,
    head: &Request<()>,
    kind: &dyn FleetRequests,
) -> Result<Response<GuardedBody>, RequestError> {
    if !matches!(*head.method(), Method::GET | Method::HEAD) {
        let error = RequestError::new(Reason::MethodNotAllowed, "the methods of this path: GET, HEAD");
        return Err(RequestError { allow: Some(HeaderValue::from_static("GET, HEAD")), ..error });
    }
    let (server, client) = (&context.server, context.log.client);
    if !server.config.addresses.allows(client) {
        return Err(RequestError::address_not_allowed(
            client,
            "agent.kubernetes_api.listen.allowed_networks",
        ));
    }
    // No rule for a service of callers concerns the list of agents.
    let service: ServiceName = ServiceName::CONTROL.parse().expect("a constant that is a service name");
    let mut request =
        RequestAttributes { address: Some(client), service: &service, agent: None, caller: None, user: None };
    server.kill_switch.check(&request)?;
    let (credential, agents) = server.access.agents(head.headers(), client).await?;
    context.guard.admit();
    let grant = Arc::clone(&agents.grant);
    (request.caller, request.user) = (Some(grant.caller.name()), grant.caller.user.as_deref());
    // For the audit log: the credential of the caller is valid.
    let with_caller = |error: RequestError| error.with_caller(grant.caller.names());
    server.kill_switch.check(&request).map_err(with_caller)?;
    let _permit = ConcurrencyPermit::acquire(server, &grant).map_err(with_caller)?;
    let sender = CallerSender {
        server: Arc::clone(server),
        guard: context.guard.clone(),
        client,
        version: context.version,
        headers: inherited(head.headers()),
        credential,
    };
    let query = head.uri().query().unwrap_or_default();
    context.log.lists_agents(grant.caller.names());
    let answer = kind.answer(FleetRequest { query, agents, sender: &sender }).await;
    let text = answer.map_err(with_caller)?;
    context.log.listed(text.len());
    let mut response = Response::new(GuardedBody::untracked(Body::from(text)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::REQUEST_ID, context.log.id.clone());
    context.body.finish(context.version, response.headers_mut()).await;
    Ok(response)
}

/// Returns the headers that the requests to agents have, too. They have no body, a type and an id of their own, and the address of the
/// caller as that of their client.
fn inherited(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    let own = [
        CONTENT_LENGTH,
        CONTENT_TYPE,
        TRANSFER_ENCODING,
        EXPECT,
        ACCEPT,
        ACCEPT_ENCODING,
        header::REQUEST_ID,
    ];
    let forwarded: Vec<_> = headers.keys().filter(|name| is_forwarded(name)).cloned().collect();
    for name in own.into_iter().chain(forwarded) {
        headers.remove(name);
    }
    headers
}

impl AgentRequests for CallerSender {
    fn get<'a>(
        &'a self,
        agent: AgentId,
        service: &'static str,
        path: &'a str,
        limit: usize,
    ) -> BoxFuture<'a, Result<Bytes, String>> {
        Box::pin(async move {
            let mut request = Request::new(None);
            let uri = agent_path(&agent.to_string(), service, path).parse();
            *request.uri_mut() = uri.map_err(|_| "the path of this request is too long".to_owned())?;
            *request.version_mut() = self.version;
            *request.headers_mut() = self.headers.clone();
            if let Some(authorization) = self.credential.authorization(agent) {
                request.headers_mut().insert(AUTHORIZATION, authorization);
            }
            let peer = PeerAddress::new(self.client);
            let request =
                ProxyRequest::new(&self.server, (&peer, &[]), Route::Path, self.guard.clone(), request);
            read(serve_request(request).await, limit).await
        })
    }
}

async fn read(response: Response<GuardedBody>, limit: usize) -> Result<Bytes, String> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, limit).collect().await;
    let body = body.map_err(|error| format!("the response of the agent ended early: {error}"))?.to_bytes();
    if head.status.is_success() {
        return Ok(body);
    }
    let message = serde_json::from_slice::<ErrorBody>(&body).map(|error| error.message);
    let message = message.unwrap_or_else(|_| format!("the agent responds {}", head.status));
    Err(message.chars().take(MAX_MESSAGE).collect())
}
