//! Signatures are verified with the public key, and cached.

use faultline_proto::a2a::{AgentCapabilities, AgentSkill};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, KeyPair, UnparsedPublicKey, VerificationAlgorithm,
};
use tempfile::NamedTempFile;

use super::*;

/// The PKCS#8 (version 1) header before the 32 bytes of an Ed25519 key from OpenSSL.
const OPENSSL_ED25519: [u8; 16] =
    [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

fn pem(der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n")
}

fn p256() -> String {
    let random = SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
    pem(EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap().as_ref())
}

fn ed25519() -> String {
    pem(&[&OPENSSL_ED25519[..], &[7; 32]].concat())
}

fn card() -> AgentCard {
    let skill = AgentSkill { id: "s".to_owned(), ..AgentSkill::default() };
    AgentCard {
        name: "écho".to_owned(),
        version: "1.0.0".to_owned(),
        capabilities: Some(AgentCapabilities { streaming: Some(false), ..Default::default() }),
        skills: vec![skill],
        documentation_url: Some(String::new()),
        ..AgentCard::default()
    }
}

fn signer(pem: &str) -> Signer {
    Signer::new(Key::from_pem(pem.as_bytes()).unwrap(), "k-1")
}

fn verifies(signer: &Signer, payload: &[u8], signature: &AgentCardSignature) -> bool {
    let (algorithm, public): (&dyn VerificationAlgorithm, &[u8]) = match &signer.key {
        Key::P256(pair) => (&ECDSA_P256_SHA256_FIXED, pair.public_key().as_ref()),
        Key::Ed25519(pair) => (&ED25519, pair.public_key().as_ref()),
    };
    let input = format!("{}.{}", signature.protected, BASE64URL.encode(payload));
    let bytes = BASE64URL.decode(&signature.signature).unwrap();
    UnparsedPublicKey::new(algorithm, public).verify(input.as_bytes(), &bytes).is_ok()
}

#[test]
fn signed_card_verifies_with_the_public_key() {
    for (pem, algorithm) in [(p256(), "ES256"), (ed25519(), "EdDSA")] {
        let signer = signer(&pem);
        let signatures = signer.sign(&card());
        let header = BASE64URL.decode(&signatures[0].protected).unwrap();
        let expected = format!(r#"{{"alg":"{algorithm}","kid":"k-1","typ":"JOSE"}}"#);
        assert_eq!(String::from_utf8(header).unwrap(), expected);
        let payloads = payloads(&json::to_vec(&card()));
        assert_eq!(payloads.len(), signatures.len());
        for (payload, signature) in payloads.iter().zip(&signatures) {
            assert!(verifies(&signer, payload, signature), "{algorithm}");
            assert!(!verifies(&signer, b"{}", signature), "{algorithm}");
        }
    }
}

#[test]
fn unchanged_card_keeps_its_signature() {
    let signer = signer(&p256());
    let signed = |name: &str| signer.sign(&AgentCard { name: name.to_owned(), ..card() });
    let first = signed("a");
    assert_eq!(signed("a"), first);
    assert_ne!(signed("b"), first);
    for n in 0..CACHE_MAX {
        signed(&n.to_string());
    }
    assert_eq!(signer.cache.lock().len(), CACHE_MAX);
    assert_ne!(signed("a"), first, "the first signature was evicted");
}

#[test]
fn empty_required_fields_are_signed_in_both_canonical_forms() {
    let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).unwrap();
    let payloads: Vec<_> = payloads(&json::to_vec(&card())).iter().map(text).collect();
    let specified = concat!(
        r#"{"capabilities":{"streaming":false},"defaultInputModes":[],"#,
        r#""defaultOutputModes":[],"description":"","documentationUrl":"","name":"écho","#,
        r#""skills":[{"description":"","id":"s","name":"","tags":[]}],"#,
        r#""supportedInterfaces":[],"version":"1.0.0"}"#
    );
    let usual = concat!(
        r#"{"capabilities":{"streaming":false},"name":"écho","skills":[{"id":"s"}],"#,
        r#""version":"1.0.0"}"#
    );
    assert_eq!(payloads, [usual, specified]);
}

#[test]
fn invalid_card_key_is_named() {
    let file = NamedTempFile::new().unwrap();
    let good = p256();
    let path = file.path();
    let refused = |key, id| Signer::load(key, id).err().unwrap().to_string();
    assert!(Signer::load(None, None).unwrap().is_none());
    assert!(refused(None, Some("k")).contains("set gateway.card_key"));
    assert!(refused(Some(path), None).contains("card_key_id"));
    assert!(refused(Some(Path::new("/no/such.pem")), Some("k")).contains("/no/such.pem"));
    for bad in ["", "junk", &good.replace("PRIVATE", "PUBLIC"), &good.replace("MIG", "NIG")] {
        fs::write(path, bad).unwrap();
        let text = refused(Some(path), Some("k"));
        assert!(text.contains(path.to_str().unwrap()), "{text}");
    }
    fs::write(path, &good).unwrap();
    assert!(Signer::load(Some(path), Some("k")).unwrap().is_some());
}
