//! The requests that have to do with audit logs of clusters: those to a Kubernetes API get an id, and those for a log get its lines with
//! the callers.

use std::sync::Arc;

use access::RequestError;
use environments_wire::DeploymentRecords;
use http::{HeaderMap, Method, Response, StatusCode, header::CONTENT_LENGTH};
use proto::{Reason, ServiceName, header::AUDIT_ID};
use store::Store;
use tunnel::Body;

use super::{
    AuditJoiner, ClusterAuditMetrics, EndedRequests,
    accesses::{AccessRecord, AccessRing, new_audit_id},
    body::join_body,
    selection::EventSelection,
};
use kas_core::{
    peers::PeerClient,
    request_hooks::{AuthorizedRequest, RequestHooks},
};

/// Gives requests the ids by which they are found in the audit logs of clusters, and adds their callers to these logs.
#[derive(Debug)]
pub(crate) struct ClusterAudit {
    /// Keeps the callers of the last requests.
    pub(crate) accesses: Arc<AccessRing>,
    pub(crate) peers: PeerClient,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) deployments: Arc<dyn DeploymentRecords>,
    pub(crate) metrics: ClusterAuditMetrics,
}

impl RequestHooks for ClusterAudit {
    fn on_request(&self, request: AuthorizedRequest<'_>, headers: &mut HeaderMap) {
        if request.destination.service.as_str() != ServiceName::KUBERNETES {
            return;
        }
        let (id, header) = new_audit_id();
        // In place of that of the caller, by which a caller could act under the id of another one.
        headers.insert(AUDIT_ID, header);
        let may_change =
            request.upgrade || !matches!(*request.method, Method::GET | Method::HEAD | Method::OPTIONS);
        self.accesses.push(AccessRecord::new(id, request, headers), may_change);
    }

    fn on_response(
        &self,
        request: AuthorizedRequest<'_>,
        response: Response<Body>,
    ) -> Result<Response<Body>, RequestError> {
        if request.destination.service.as_str() != ServiceName::AUDIT {
            return Ok(response);
        }
        match response.status() {
            StatusCode::OK => self.join(request, response),
            // Clients would take its lines for those that kas has joined.
            status if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS => {
                let what = format!("the agent answered {} instead of an audit log", status.as_u16());
                Err(RequestError::new(Reason::AgentMisbehaved, what))
            }
            _ => Ok(response),
        }
    }
}

impl ClusterAudit {
    /// Adds the callers of requests to the lines of a log.
    fn join(
        &self,
        request: AuthorizedRequest<'_>,
        mut response: Response<Body>,
    ) -> Result<Response<Body>, RequestError> {
        let query = request.uri.query().unwrap_or_default();
        let joiner = AuditJoiner {
            accesses: Arc::clone(&self.accesses),
            peers: self.peers.clone(),
            store: Arc::clone(&self.store),
            deployments: Arc::clone(&self.deployments),
            metrics: self.metrics.clone(),
            agent: request.destination.agent,
            label: request.destination.label().to_string(),
            selection: EventSelection::parse(query)?,
            ended: EndedRequests::default(),
        };
        response.headers_mut().remove(CONTENT_LENGTH);
        Ok(response.map(|body| join_body(joiner, body)))
    }
}
