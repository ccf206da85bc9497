// An access to memory of 4, 8 or 16 bytes as one value, for loads and stores that carry a cache hint.
template <int BYTES> struct AccessOf;
template <> struct AccessOf<4> { using Type = unsigned; };
template <> struct AccessOf<8> { using Type = uint2; };
template <> struct AccessOf<16> { using Type = uint4; };
template <int BYTES> using Access = typename AccessOf<BYTES>::Type;
