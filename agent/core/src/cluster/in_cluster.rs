//! The service account of the pod that agentk runs in.
//!
//! <https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/>

use std::path::Path;

use super::{
    ClusterEnvironment, ClusterError, ConfigSource, CredentialFile, CredentialKind, Credentials,
    ResolvedCluster,
};
use crate::upstream::{ClientTlsConfig, Pem, ServerUrl};

/// Returns the host and the port of the API server, if this is a pod. Every container has both variables, also without a
/// token.
pub(super) fn address(environment: &ClusterEnvironment<'_>) -> Option<(String, String)> {
    let variable = |name| environment.get(name).map(|value| value.to_string_lossy().into_owned());

    Some((variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?))
}

/// Reads the service account, which blocks.
pub(super) fn load(
    (host, port): (String, String),
    directory: &Path,
) -> Result<ResolvedCluster, ClusterError> {
    let invalid = || ClusterError::ServiceAddress { address: format!("{host}:{port}") };
    let number = port.parse().map_err(|_| invalid())?;
    let url = ServerUrl::https(&host, number).map_err(|_| invalid())?;
    let token =
        CredentialFile::open(directory.join("token"), CredentialKind::Token).map_err(
            |error| match error {
                ClusterError::Read { path, cause, .. } => ClusterError::Read {
                    path,
                    cause,
                    hint: "; is automountServiceAccountToken off? Mount a token there, or name a kubeconfig",
                },
                other => other,
            },
        )?;
    let namespace = files::read_text(&directory.join("namespace")).unwrap_or_default();
    let namespace = Some(namespace.trim()).filter(|name| !name.is_empty()).unwrap_or("default");

    Ok(ResolvedCluster {
        source: ConfigSource::ServiceAccount,
        url,
        namespace: namespace.to_owned(),
        impersonation: None,
        credentials: Credentials::File(token),
        tls: ClientTlsConfig { ca: Some(Pem::File(directory.join("ca.crt"))), ..ClientTlsConfig::default() },
    })
}
