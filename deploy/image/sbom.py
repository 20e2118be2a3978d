"""The software bill of materials of an image: SPDX 2.3, as JSON."""

import datetime
import hashlib
import json
import os
import pathlib
import re
import uuid

NOBODY = "NOASSERTION"


def identifier(kind, name):
    return f"SPDXRef-{kind}-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def created():
    """Now, or what the build is told to take for it so that it can be repeated."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    moment = (datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc) if epoch else
              datetime.datetime.now(datetime.timezone.utc))
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def distribution(os_release=pathlib.Path("/etc/os-release")):
    fields = dict(line.split("=", 1) for line in os_release.read_text().splitlines() if "=" in line)
    return {key: fields.get(key, "").strip('"') for key in ("ID", "VERSION_ID")}


def package_url(package, release):
    epochless = package.version.replace(":", "%3A").replace("+", "%2B").replace("~", "~")
    return (f"pkg:deb/{release['ID']}/{package.name.replace('+', '%2B')}@{epochless}"
            f"?arch={package.architecture}&distro={release['ID']}-{release['VERSION_ID']}")


def of_package(package, release):
    licences = package.licences()
    named = "debian/copyright names " + ", ".join(licences) if licences else "in debian/copyright"
    return {
        "SPDXID": identifier("Package", package.name),
        "name": package.name,
        "versionInfo": package.version,
        "supplier": "Organization: " + package.maintainer,
        "downloadLocation": NOBODY,
        "homepage": package.homepage or NOBODY,
        "sourceInfo": f"built from {package.source} {package.source_version}",
        "filesAnalyzed": False,
        "licenseConcluded": NOBODY,
        "licenseDeclared": NOBODY,
        "licenseComments": f"{named}; the text is in the image, {package.copyright_file}",
        "copyrightText": NOBODY,
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                          "referenceLocator": package_url(package, release)}],
    }


def of_file(path, content):
    """`path`: where the image has it."""
    return {
        "SPDXID": identifier("File", str(path).lstrip("/")),
        "fileName": "." + str(path),
        "fileTypes": ["BINARY"],
        "checksums": [{"algorithm": "SHA1", "checksumValue": hashlib.sha1(content).hexdigest()},
                      {"algorithm": "SHA256", "checksumValue": hashlib.sha256(content).hexdigest()}],
        "licenseConcluded": NOBODY,
        "copyrightText": NOBODY,
    }


def relation(one, kind, other):
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}


def set_contents(package, files):
    """Says that these files, and no others of the package, are in the image."""
    sums = sorted(file["checksums"][0]["checksumValue"] for file in files)
    package["filesAnalyzed"] = True
    package["packageVerificationCode"] = {
        "packageVerificationCodeValue": hashlib.sha1("".join(sums).encode()).hexdigest()}


def document(normd, programs, libraries, compiled_in, base):
    """The document's text.

    normd: its version and revision. programs: where the image has each of normd's, and its bytes. libraries: the same of the shared
    libraries, with the Package that owns each. compiled_in: the packages of headers that programs
    were compiled from and whose libraries, if any, are not theirs. base: the package of the licences' texts.
    """
    version, revision = normd
    release = distribution()
    main = {
        "SPDXID": "SPDXRef-Package-normd",
        "name": "normd",
        "versionInfo": version,
        "supplier": NOBODY,
        "downloadLocation": NOBODY,
        "sourceInfo": f"revision {revision}",
        "filesAnalyzed": False,
        "primaryPackagePurpose": "APPLICATION",
        "licenseConcluded": "Apache-2.0",
        "licenseDeclared": "Apache-2.0",
        "copyrightText": NOBODY,
    }
    packages = {main["SPDXID"]: main}
    contents = {main["SPDXID"]: [of_file(path, content) for path, content in programs]}
    relations = [relation("SPDXRef-DOCUMENT", "DESCRIBES", main["SPDXID"])]

    def add(package, kind):
        one = of_package(package, release)
        if packages.setdefault(one["SPDXID"], one) is one:
            relations.append(relation(main["SPDXID"], kind, one["SPDXID"]))
        return one["SPDXID"]

    for path, content, package in libraries:
        contents.setdefault(add(package, "DYNAMIC_LINK"), []).append(of_file(path, content))
    for package in compiled_in:
        add(package, "STATIC_LINK")
    add(base, "DEPENDS_ON")
    for name, files in contents.items():
        set_contents(packages[name], files)
        relations += [relation(name, "CONTAINS", file["SPDXID"]) for file in files]
    files = [file for some in contents.values() for file in some]
    content = json.dumps([list(packages.values()), files], sort_keys=True)
    return json.dumps({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"normd-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/normd-{version}-"
                             f"{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "creationInfo": {"created": created(), "creators": ["Tool: normd-deploy-image"]},
        "packages": list(packages.values()),
        "files": files,
        "relationships": relations,
    }, indent=1) + "\n"
