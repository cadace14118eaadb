-- KEYS: open, held, lapsed, limits. ARGV: base of the keys; for each limit its
-- terms. Gives for each limit: used, reserved, reset.
lapse(KEYS[1], KEYS[2], KEYS[3], ARGV[1])
local out = {}
for i = 1, #KEYS - 3 do
  local _, kind, amount, p = terms(1, i, 0)
  local l = read(KEYS[i + 3], kind, amount, p)
  if kind == 's' and l.found then write(l) end
  out[#out + 1] = math.ceil(l.u - EPS)
  out[#out + 1] = math.ceil(l.r - EPS)
  out[#out + 1] = math.ceil(reset(l) - EPS)
end
return out
