"""Yu, dissertation, chapter 4: "Orloj: Predictably Serving Unpredictable DNNs"."""
