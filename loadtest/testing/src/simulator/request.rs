//! API requests: query parameters, and bodies in JSON and YAML.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use http::{
    HeaderName, Request,
    header::{ACCEPT, CONTENT_TYPE},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::simulator::{
    cluster::Cluster,
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

/// Parameters from a query string or a form, in order. A name may be repeated.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        Self(pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(decode_pair).collect())
    }

    /// Appends the parameters of a form.
    pub(crate) fn extend(&mut self, form: Self) {
        self.0.extend(form.0);
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn all<'query>(&'query self, name: &'query str) -> impl Iterator<Item = &'query str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some("true" | "1"))
    }

    /// Returns a parameter that must be a number if it is present.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, StatusError> {
        let Some(text) = self.get(name).filter(|text| !text.is_empty()) else { return Ok(None) };
        let number = text.parse();
        number.map(Some).map_err(|_| StatusError::bad_request(format!("{name}: \"{text}\" is not a number")))
    }
}

fn decode_pair((key, value): (&str, &str)) -> (String, String) {
    (decode(&key.replace('+', " ")).into_owned(), decode(&value.replace('+', " ")).into_owned())
}

/// Decodes percent-encoding. Bytes that are not UTF-8 are replaced, and then match nothing.
pub(crate) fn decode(text: &str) -> Cow<'_, str> {
    percent_decode_str(text).decode_utf8_lossy()
}

fn shallow(value: Value) -> Result<Value, StatusError> {
    if depth(&value) > MAX_DEPTH {
        return Err(StatusError::bad_request(format!("the body is nested more than {MAX_DEPTH} deep")));
    }
    Ok(value)
}
