//! API requests: query parameters, and bodies in JSON and YAML.

use std::sync::Arc;

use bytes::Bytes;
use http::{
    HeaderName, Request,
    header::{ACCEPT, CONTENT_TYPE},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde_json::Value;

use crate::simulator::{
    cluster::Cluster,
    query::Query,
    response::StatusError,
    selector::{MAX_DEPTH, depth},
    store::WriteMode,
};

/// The size limit of a body in bytes. Larger ones are refused with 413, as by a real API server.
pub(crate) const MAX_BODY: usize = 3 * 1024 * 1024;

/// A request with its cluster and its parsed query.
#[derive(Debug)]
pub(crate) struct ApiRequest {
    pub cluster: Arc<Cluster>,
    pub request: Request<Incoming>,
    pub query: Query,
}

impl ApiRequest {
    pub(crate) fn new(cluster: Arc<Cluster>, request: Request<Incoming>) -> Self {
        let query = Query::parse(request.uri().query().unwrap_or_default());
        Self { cluster, request, query }
    }

    pub(crate) fn header(&self, name: &HeaderName) -> &str {
        self.request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Returns the media type of the body, without parameters.
    pub(crate) fn content_type(&self) -> String {
        self.header(&CONTENT_TYPE).split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
    }

    pub(crate) fn accept(&self) -> &str {
        self.header(&ACCEPT)
    }

    pub(crate) fn mode(&self) -> WriteMode {
        if self.query.all("dryRun").any(|stage| stage == "All") {
            WriteMode::DryRun
        } else {
            WriteMode::Commit
        }
    }

    pub(crate) async fn body(&mut self) -> Result<Bytes, StatusError> {
        match Limited::new(self.request.body_mut(), MAX_BODY).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(StatusError::too_large(MAX_BODY)),
            Err(error) => Err(StatusError::bad_request(format!("cannot read the body: {error}"))),
        }
    }

    /// Returns the body as an object, from JSON or YAML.
    pub(crate) async fn object(&mut self) -> Result<Value, StatusError> {
        let body = self.body().await?;
        match self.content_type().as_str() {
            "" | "application/json" => json(&body),
            "application/yaml" => yaml(&body),
            found => Err(StatusError::unsupported_media_type(
                found,
                "application/json and application/yaml: use `kubectl apply -f`",
            )),
        }
    }
}

pub(crate) fn json(body: &[u8]) -> Result<Value, StatusError> {
    let value = serde_json::from_slice(body)
        .map_err(|error| StatusError::bad_request(format!("the body is not JSON: {error}")))?;
    shallow(value)
}

/// Parses YAML, which includes JSON.
pub(crate) fn yaml(body: &[u8]) -> Result<Value, StatusError> {
    let value = serde_saphyr::from_slice(body)
        .map_err(|error| StatusError::bad_request(format!("the body is not YAML: {error}")))?;
    shallow(value)
}

fn shallow(value: Value) -> Result<Value, StatusError> {
    if depth(&value) > MAX_DEPTH {
        return Err(StatusError::bad_request(format!("the body is nested more than {MAX_DEPTH} deep")));
    }
    Ok(value)
}
