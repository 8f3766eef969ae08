"""AlpaServe's runtime (section 4.3), simulated: groups of GPUs share the stages of their models.

A group has a shape, and every model on it runs in that shape. A request goes to one of the groups that
have its model; each stage serves in order of arrival, so that the clocks of the stages tell when the
request would be answered. If that is too late it is rejected at once. These modules are the meaning;
`native/placement` is their twin, request by request.
"""
