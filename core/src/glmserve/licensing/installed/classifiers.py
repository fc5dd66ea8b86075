"""What the licence classifiers of the Python package index can mean, as SPDX identifiers.

A classifier with one meaning declares that licence. One with several does not say which; it only agrees with any of
them. One that is not here, or has none, agrees with nothing.
"""

from __future__ import annotations

PREFIX = "License :: "
_OSI = "License :: OSI Approved :: "

IGNORED = frozenset({"License :: OSI Approved", "License :: DFSG approved", "License :: Freely Distributable"})
"""They name no licence."""


def _gnu(name: str, *versions: str) -> tuple[str, ...]:
    return tuple(f"{name}-{version}-{which}" for version in versions for which in ("only", "or-later"))


PROPRIETARY = "License :: Other/Proprietary License"
"""It names no licence; only one that is not on the SPDX list fits it."""

LICENSES: dict[str, tuple[str, ...]] = {
    "License :: CC0 1.0 Universal (CC0 1.0) Public Domain Dedication": ("CC0-1.0",),
    "License :: CeCILL-B Free Software License Agreement (CECILL-B)": ("CECILL-B",),
    "License :: CeCILL-C Free Software License Agreement (CECILL-C)": ("CECILL-C",),
    "License :: Public Domain": ("CC0-1.0", "Unlicense", "0BSD"),
    PROPRIETARY: (),
    f"{_OSI}Academic Free License (AFL)": ("AFL-1.1", "AFL-1.2", "AFL-2.0", "AFL-2.1", "AFL-3.0"),
    f"{_OSI}Apache Software License": ("Apache-2.0", "Apache-1.1", "Apache-1.0"),
    f"{_OSI}Artistic License": ("Artistic-2.0", "Artistic-1.0", "Artistic-1.0-Perl", "Artistic-1.0-cl8"),
    f"{_OSI}BSD License": (
        "BSD-3-Clause",
        "BSD-2-Clause",
        "0BSD",
        "BSD-1-Clause",
        "BSD-4-Clause",
        "BSD-3-Clause-Clear",
    ),
    f"{_OSI}Blue Oak Model License (BlueOak-1.0.0)": ("BlueOak-1.0.0",),
    f"{_OSI}Boost Software License 1.0 (BSL-1.0)": ("BSL-1.0",),
    f"{_OSI}CEA CNRS Inria Logiciel Libre License, version 2.1 (CeCILL-2.1)": ("CECILL-2.1",),
    f"{_OSI}CMU License (MIT-CMU)": ("MIT-CMU",),
    f"{_OSI}Common Development and Distribution License 1.0 (CDDL-1.0)": ("CDDL-1.0",),
    f"{_OSI}Eclipse Public License 1.0 (EPL-1.0)": ("EPL-1.0",),
    f"{_OSI}Eclipse Public License 2.0 (EPL-2.0)": ("EPL-2.0",),
    f"{_OSI}Educational Community License, Version 2.0 (ECL-2.0)": ("ECL-2.0",),
    f"{_OSI}European Union Public Licence 1.0 (EUPL 1.0)": ("EUPL-1.0",),
    f"{_OSI}European Union Public Licence 1.1 (EUPL 1.1)": ("EUPL-1.1",),
    f"{_OSI}European Union Public Licence 1.2 (EUPL 1.2)": ("EUPL-1.2",),
    f"{_OSI}GNU Affero General Public License v3": _gnu("AGPL", "3.0"),
    f"{_OSI}GNU Affero General Public License v3 or later (AGPLv3+)": ("AGPL-3.0-or-later",),
    f"{_OSI}GNU General Public License (GPL)": _gnu("GPL", "1.0", "2.0", "3.0"),
    f"{_OSI}GNU General Public License v2 (GPLv2)": _gnu("GPL", "2.0"),
    f"{_OSI}GNU General Public License v2 or later (GPLv2+)": ("GPL-2.0-or-later",),
    f"{_OSI}GNU General Public License v3 (GPLv3)": _gnu("GPL", "3.0"),
    f"{_OSI}GNU General Public License v3 or later (GPLv3+)": ("GPL-3.0-or-later",),
    f"{_OSI}GNU Lesser General Public License v2 (LGPLv2)": _gnu("LGPL", "2.0", "2.1"),
    f"{_OSI}GNU Lesser General Public License v2 or later (LGPLv2+)": ("LGPL-2.0-or-later", "LGPL-2.1-or-later"),
    f"{_OSI}GNU Lesser General Public License v3 (LGPLv3)": _gnu("LGPL", "3.0"),
    f"{_OSI}GNU Lesser General Public License v3 or later (LGPLv3+)": ("LGPL-3.0-or-later",),
    f"{_OSI}GNU Library or Lesser General Public License (LGPL)": _gnu("LGPL", "2.0", "2.1", "3.0"),
    f"{_OSI}Historical Permission Notice and Disclaimer (HPND)": ("HPND",),
    f"{_OSI}ISC License (ISCL)": ("ISC",),
    f"{_OSI}MIT License": ("MIT",),
    f"{_OSI}MIT No Attribution License (MIT-0)": ("MIT-0",),
    f"{_OSI}Mozilla Public License 1.0 (MPL)": ("MPL-1.0",),
    f"{_OSI}Mozilla Public License 1.1 (MPL 1.1)": ("MPL-1.1",),
    f"{_OSI}Mozilla Public License 2.0 (MPL 2.0)": ("MPL-2.0",),
    f"{_OSI}Mulan Permissive Software License v2 (MulanPSL-2.0)": ("MulanPSL-2.0",),
    f"{_OSI}Open Software License 3.0 (OSL-3.0)": ("OSL-3.0",),
    f"{_OSI}PostgreSQL License": ("PostgreSQL",),
    f"{_OSI}Python License (CNRI Python License)": ("CNRI-Python",),
    f"{_OSI}Python Software Foundation License": ("PSF-2.0", "Python-2.0", "Python-2.0.1"),
    f"{_OSI}SIL Open Font License 1.1 (OFL-1.1)": ("OFL-1.1", "OFL-1.1-RFN", "OFL-1.1-no-RFN"),
    f"{_OSI}The Unlicense (Unlicense)": ("Unlicense",),
    f"{_OSI}Universal Permissive License (UPL)": ("UPL-1.0",),
    f"{_OSI}University of Illinois/NCSA Open Source License": ("NCSA",),
    f"{_OSI}W3C License": ("W3C", "W3C-19980720", "W3C-20150513"),
    f"{_OSI}Zero-Clause BSD (0BSD)": ("0BSD",),
    f"{_OSI}Zope Public License": ("ZPL-1.1", "ZPL-2.0", "ZPL-2.1"),
    f"{_OSI}zlib/libpng License": ("Zlib", "libpng-2.0", "zlib-acknowledgement"),
}
