//! The service account of the pod we run in.
//!
//! <https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/>

use std::path::Path;

use super::{ClusterError, Content, CredentialFile, Environment, Found, Source, credentials::Credentials};
use crate::upstream::{Endpoint, Pem, TlsOptions};

/// Host and port, if this is a pod. Both are set in every container, even where no token is mounted.
pub(super) fn address(environment: &Environment<'_>) -> Option<(String, String)> {
    let variable = |name| environment.get(name).map(|value| value.to_string_lossy().into_owned());

    Some((variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?))
}

pub(super) fn load((host, port): (String, String), directory: &Path) -> Result<Found, ClusterError> {
    let invalid = || ClusterError::ServiceAddress { address: format!("{host}:{port}") };
    let number = port.parse().map_err(|_| invalid())?;
    let endpoint = Endpoint::https(&host, number).map_err(|_| invalid())?;
    let token =
        CredentialFile::open(directory.join("token"), Content::Token).map_err(|error| match error {
            ClusterError::Read { path, cause, .. } => ClusterError::Read {
                path,
                cause,
                hint: "; is automountServiceAccountToken off? Mount a token there, or name a kubeconfig",
            },
            other => other,
        })?;
    let namespace = std::fs::read_to_string(directory.join("namespace")).unwrap_or_default();
    let namespace = Some(namespace.trim()).filter(|name| !name.is_empty()).unwrap_or("default");

    Ok(Found {
        source: Source::ServiceAccount,
        endpoint,
        namespace: namespace.to_owned(),
        impersonation: None,
        credentials: Credentials::File(token),
        tls: TlsOptions { ca: Some(Pem::File(directory.join("ca.crt"))), ..TlsOptions::default() },
    })
}
