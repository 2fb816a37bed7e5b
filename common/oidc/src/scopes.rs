//! The scopes for which an issuer puts claims into a token (OpenID Connect Core 1.0 section 5.4).

use super::ProviderMetadata;

/// The scope of refresh tokens (section 11).
const OFFLINE_ACCESS: &str = "offline_access";

/// The claims of each standard scope.
const STANDARD: [(&str, &[&str]); 4] = [
    (
        "profile",
        &[
            "name",
            "family_name",
            "given_name",
            "middle_name",
            "nickname",
            "preferred_username",
            "profile",
            "picture",
            "website",
            "gender",
            "birthdate",
            "zoneinfo",
            "locale",
            "updated_at",
        ],
    ),
    ("email", &["email", "email_verified"]),
    ("address", &["address"]),
    ("phone", &["phone_number", "phone_number_verified"]),
];

/// Returns the scope for which an issuer releases a claim: the standard one, or for another claim the one with its name, as Dex and
/// Okta have it for `groups`.
pub fn scope_of(claim: &str) -> &str {
    let standard = STANDARD.iter().find(|(_, claims)| claims.contains(&claim));
    standard.map_or(claim, |(scope, _)| scope)
}

/// Returns the scopes with which a login gets these claims and a refresh token, separated by spaces.
///
/// If the issuer publishes its scopes, they are some of these. If it does not, they are standard ones: an issuer ignores a standard
/// scope that it does not have (section 3.1.2.1), and may refuse others.
pub fn scopes_for<'a>(claims: impl IntoIterator<Item = &'a str>, metadata: &ProviderMetadata) -> String {
    let is_standard =
        |scope: &str| STANDARD.iter().any(|(name, _)| *name == scope) || scope == OFFLINE_ACCESS;
    let is_supported = |scope: &str| match &metadata.scopes_supported {
        Some(supported) => supported.iter().any(|name| name == scope),
        None => is_standard(scope),
    };
    let mut scopes = vec!["openid"];
    for scope in claims.into_iter().map(scope_of).chain([OFFLINE_ACCESS]) {
        if !scopes.contains(&scope) && is_supported(scope) {
            scopes.push(scope);
        }
    }
    scopes.join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scopes(claims: &[&str], supported: Option<&[&str]>) -> String {
        let mut document = json!({"issuer": "https://a.example", "jwks_uri": "https://a.example/keys"});
        if let Some(supported) = supported {
            document["scopes_supported"] = json!(supported);
        }
        let metadata = ProviderMetadata::parse(document.to_string().as_bytes(), "https://a.example");
        scopes_for(claims.iter().copied(), &metadata.unwrap())
    }

    #[test]
    fn claims_need_their_scopes_as_far_as_the_issuer_has_them() {
        let dex = Some(&["openid", "email", "groups", "profile", "offline_access"][..]);
        let google = Some(&["openid", "email", "profile"][..]);
        for (claims, supported, expected) in [
            (&["email", "groups"][..], dex, "openid email groups offline_access"),
            (
                &["email", "email_verified", "preferred_username", "name"],
                dex,
                "openid email profile offline_access",
            ),
            (&["sub", "project_path"], dex, "openid offline_access"),
            (&["email", "groups"], google, "openid email"),
            (&["email", "groups", "phone_number"], None, "openid email phone offline_access"),
            (&[], None, "openid offline_access"),
        ] {
            assert_eq!(scopes(claims, supported), expected, "{claims:?} {supported:?}");
        }
    }
}
