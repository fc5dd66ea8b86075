"""May I do this with that? The audit of an assembly, from manifests and reviewed terms to a verdict.

expressions, rows, catalogue, texts    what licences say
policy, acceptance                     what the user says
report, terms, ancestry, lifting, verdict, audit    the algebra, and the report it comes to
evidence, card, found                  what lies beside a component
installed, wheel, content              Python distributions, wheels, and what bytes are
outputs, bundle                        tables, SBOMs, notices, and archives of what may be passed on
"""
