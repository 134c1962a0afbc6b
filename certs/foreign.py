"""Certificates that cert-manager makes: read, followed, never written.

cert-manager writes ``tls.crt``, ``tls.key`` and ``ca.crt`` into the Secret of a Certificate, and its cainjector copies
``ca.crt`` into the caBundle of every webhook configuration that is annotated ``cert-manager.io/inject-ca-from:
NAMESPACE/CERTIFICATE``. It does so a moment after the Secret has changed; until then a certificate of a CA that the
caBundle does not have is not taken over as long as the one that is served is good and trusted.
"""

from datetime import datetime

from certs import store
from certs.authority import Bundle, BundleError, check_serving, parse, signed_by
from certs.options import CertificateOptions
from certs.trust import Published
from kube.client import Client

INJECT = "cert-manager.io/inject-ca-from"


class CertificatesMissingError(Exception):
    """There is nothing that could be served; the text says what has to be there, and what is."""


async def read(client: Client, options: CertificateOptions, now: datetime) -> Bundle:
    """What cert-manager made.

    Raises CertificatesMissingError where it has not, or what it made cannot be served, and KubeError.
    """
    found = await store.read(client, options.namespace, options.secret)
    made = found.bundle
    if made is None or not (made.cert_pem and made.key_pem):
        raise CertificatesMissingError(
            f"{options.where}: expected tls.crt, tls.key and ca.crt, made by cert-manager: is there a Certificate with "
            f"secretName {options.secret}, and is it ready?"
        )
    # A ca.key in cert-manager's Secret is not for us to sign with. Without it the bundle counts as made by somebody
    # else.
    made = Bundle(made.ca_pem, made.cert_pem, made.key_pem)
    try:
        check_serving(made, now)
    except BundleError as error:
        raise CertificatesMissingError(f"{options.where}: {error}; cert-manager has to renew it") from error
    return made


def choose(made: Bundle, held: Bundle | None, published: Published, now: datetime) -> Bundle:
    """Which to serve: the one in the Secret, or still the one that is held."""
    # A certificate that is held and no longer trusted is no reason to wait: the cainjector publishes the new CA in a
    # moment.
    if held is None or trusted(made, published) or not trusted(held, published):
        return made
    try:
        check_serving(held, now)
    except BundleError:
        return made
    return held


def trusted(bundle: Bundle, published: Published) -> bool:
    """Whether every webhook's caBundle has a CA of the certificate; also where there are no webhooks."""
    chain = parse(bundle.cert_pem, "tls.crt")
    # A caBundle may hold a certificate of the chain itself: an intermediate, or one that signs itself.
    return all(
        any(link == each or signed_by(link, each) for each in authorities for link in chain)
        for authorities in published.bundles
    )


def advice(options: CertificateOptions, published: Published) -> str:
    """What to look at where the caBundle does not have the CA."""
    lines = []
    for resource, name, configuration in published.found:
        source = (configuration.metadata.annotations or {}).get(INJECT)
        has = f"has {INJECT}: {source}" if source else f"lacks the annotation {INJECT}: {options.namespace}/CERTIFICATE"
        lines.append(f"{resource.kind} {name} {has}")
    return f"{'; '.join(lines)}; is the cainjector of cert-manager running?"
